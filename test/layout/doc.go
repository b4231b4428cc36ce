// Package layout starts engines with the arguments that the operator gives their pods and compares what they say of
// themselves with what the operator expects: which ranks there are, which pod hosts them, whose series /metrics has, and
// whether a trace level reaches them. It is the proof that package plan and the engine have one idea of a replica, for
// neither may import the other. It starts built programs through test/harness, on the loopback network, without a cluster.
package layout
