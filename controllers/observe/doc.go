// Package observe polls the leaders of engine replicas and keeps what they say.
//
// It owns three things: the Poller, which asks every leader for GET /v1/loads once an interval; the Store, which holds
// the newest sample of each pod with the time it was taken by the operator's own clock; and the pure functions that
// turn samples into a pool's load (Load), into the answer whether a pod is drained (Store.Drained) and into the amount
// of work that a replica still has (Store.Outstanding).
//
// A sample is fresh up to max(3 intervals, 10 s). After that it is stale: it is named in the missing ranks and is never
// a number. The sentinel -1, NaN and infinities are never numbers either.
//
// The Poller runs on every replica of the operator, not on the leader alone: the custom metrics API is served by every
// replica from its own samples, so its Service needs no notion of a leader and a new leader starts with full samples.
// The cost is one small GET per engine, interval and operator replica.
//
// The package must not know how a pool is scaled, drained or reconciled, and it writes nothing to the API server. The
// enginepool controller reads Store and Load for status and draining, the autoscaling package reads Store for the
// custom metrics API, and cmd/operator builds the Store and the Poller.
package observe
