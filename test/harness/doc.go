// Package harness starts the built programs for tests that look at them from outside: binaries, seeded models, processes
// with their logs, engines and routers, and the questions that tests ask of them over HTTP. It knows flags, routes and
// bodies, and of the engine's packages only the wire types of /v1/loads. The packages of test/ call it.
package harness
