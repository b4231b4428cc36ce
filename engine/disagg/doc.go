// Package disagg hands the KV pages of a prompt from a prefill rank to a decode rank.
//
// It owns the bootstrap server (where decode ranks learn where a prefill rank listens), the TCP connections between the
// ranks, their authentication and their framing, and how the pages of one world of ranks are cut for another. It knows
// pages by number and by bytes: no tensor, request, queue or metric. The scheduler of each rank calls it; the API process of
// a prefill engine serves Bootstrap.
//
// # One room
//
//	decode rank                                 prefill rank
//	Open(bootstrap, promptTokens)               Open(room, promptTokens)            Bootstrapping, either order
//	  GET /ranks ------------------> bootstrap server
//	  dial, hello ----------------->            challenge, proofs both ways
//	WaitingPages <------------------ accept
//	Allocate(pages) ---------------> allocated  Ready
//	Transferring                                Send(layer, ordinal, page) ...      Sending
//	  WritePage <------------------- page (CRC32C)
//	                                            Finish(first)
//	Done(first) <------------------- first
//	               ack ------------>            Done
//
// # Worlds
//
// Prefill and decode engines may have other numbers of tensor-parallel ranks and pipeline stages. A rank holds some of the
// model's layers and KV heads; a decode rank meets every prefill rank that holds some of its own, one session each, and a
// Sender or Receiver is all sessions of a rank in a room (group.go). A page frame carries what both ranks hold of one layer
// of one page, cut out by the prefill rank and put into its place by the decode rank. Which rank gives what to whom follows
// from the two sizes alone (shard.go). Nothing is acknowledged before everything of every peer has arrived; the failure of
// one session ends the room at all ranks that are connected with it.
//
// Layers with an attention window have pages of their own, and only those travel that the next token still sees.
//
// # Who owns the pages
//
// From Send until the Sender's state is terminal the sender may read the pages that were sent; from Allocate until the
// Receiver's state is terminal the receiver may write the pages it was given. State never returns Done or Failed, and
// Settled is not closed, before the last such access is over: a scheduler that sees a terminal state may free the pages
// at once. After Done the decode rank's pages hold the prompt's KV; after Failed their content is undefined.
//
// # Ends
//
// Each session ends exactly once: Done, or Failed with an *Error that says in which step, for which reason and with
// which peer. The peer is told the reason with an error frame when the connection still works, and in what the request ended when
// that is common to both its halves: a client who left, an abort by the operator, a time-out (request.Outcome.Common). So is
// a peer that comes later. The death of a process shows as a closed connection, that of a machine as silence longer than
// IdleTimeout (both sides send pings).
//
// # Trust
//
// Both sides prove knowledge of the shared secret over fresh nonces before either says anything about rooms. A peer
// without the secret can neither open, learn of, nor end a room; it costs at most one of MaxHandshakes connections for
// at most HandshakeTimeout. Page contents are checked against damage (CRC32C), not encrypted: someone who can alter the
// traffic of the pod network is outside this package's guard.
package disagg
