// Package proxy is the router's HTTP side: it pairs a prefill with a decode engine, forwards a request to both and
// streams the decode engine's answer.
//
// It owns the bodies' bootstrap fields, retries, streaming, errors of its own and the routes. It must not know how
// engines are found (router/discovery), which one is best (router/fleet, router/policy) or how numbers are exported: it
// tells an Observer. cmd/router makes one Proxy and serves it.
//
// # One request
//
//  1. Read the whole body, at most MaxBodyBytes.
//  2. Take engines from the fleet; wait up to QueueTimeout for some to be usable, and longer where pools may be empty: GET
//     /demand says who waits, so that the operator makes engines.
//  3. Send the body to both, with bootstrap_host, bootstrap_port and a fresh bootstrap_room, in one trace; a unified engine
//     gets it as it is.
//  4. Wait for the decode engine's first bytes, or for either side to fail. Before the first byte a failure of either
//     cancels the other; the next pair is tried unless the engine said that the request itself is at fault.
//  5. Stream the answer byte for byte. From here on nothing is tried again: an engine that breaks off ends the stream
//     with an error event, other answers with a closed connection.
//
// Of the last requests it remembers engines and times, never what was asked or answered: see trail.
//
// The client's departure cancels both sides at any time.
package proxy
