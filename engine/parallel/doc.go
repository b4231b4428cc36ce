// Package parallel connects the ranks of a world: one copy of the model cut over tensor-parallel ranks and pipeline
// stages. It owns who is where (Place), the sums and gathers of a tensor-parallel group (Group), the activations between
// stages (Pipe), what the scheduler of rank 0 says to all and what all say to each other (Peers), and the end of a world
// when one of its ranks ends. It knows no tensor, request or page: it moves numbers and bytes.
//
// engine/rank calls Join; engine/model uses Group and Pipe, engine/runner and engine/scheduler Cast and Peers, each
// through an interface of its own.
//
// Ranks of one host meet in a private folder and move bytes through shared memory; ranks of different hosts meet at the
// rendezvous and use TCP, each side proving that it knows the secret. Tests use Local. All three give the same results:
// sums are taken in the order of the ranks, so that every rank has the same bits.
//
// Every rank calls the operations of a channel in the same order. What arrives says what it is and how long; anything but
// what is due ends the world, and so does the death of a rank: each operation that is under way, on every rank, then ends
// with a *PeerError that names it.
package parallel
