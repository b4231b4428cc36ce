// Package engine tests the built sluice-engine from outside: processes, sockets and signals, as a user meets them. It knows
// flags, routes and bodies, and of the engine's packages only the wire types of /v1/loads.
package engine
