// Package scaling shows the arithmetic behind a pool's number of replicas: each decision that the operator recorded is computed
// again from its inputs, and so is what the autoscaler makes of the newest values. Everything in it is a pure function. It must
// not know connections. The command `scale explain` of package plugin calls it.
package scaling
