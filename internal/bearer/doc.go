// Package bearer checks the key that a client sends in the header Authorization: Bearer KEY. It does not know which routes
// need which key. engine/server and router/proxy ask it.
package bearer
