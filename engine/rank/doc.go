// Package rank runs a scheduler and its device as one rank of a replica, in a process of its own or in this one, and
// gives the API process a Client to it. It owns the process's life, the protocol between the two and the wiring of the
// rank's parts; it decides nothing about requests and knows no HTTP. engine/server and cmd/engine call it.
package rank
