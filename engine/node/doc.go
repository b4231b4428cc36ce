// Package node lets the API processes of a replica that lies on several nodes start and end together. It owns the
// connections between node 0, which leads, and the others: who is there, what node 0 orders, who has failed and why. It
// knows no rank, request or model; what is ordered is bytes.
//
// engine/server calls it: Listen on node 0, Join on the others. Each side proves that it knows the secret, over fresh
// nonces, before anything else is said. A connection that breaks or falls silent is the end of a node, and that of the
// replica; the death of a process shows at once, that of a machine after Silence.
//
//	node k                                node 0
//	hello, proofs both ways ------->      Gather: waits for all
//	             <------- orders          Start
//	ready ------->                        Ready: waits for all
//	failed ------->                       Lost
//	             <------- end             End
package node
