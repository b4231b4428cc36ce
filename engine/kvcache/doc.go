// Package kvcache accounts for KV memory: which pages are free, used, cached or reserved, and which cached page holds the KV
// of which tokens. It is host data, page numbers and tokens alone; it knows no tensor, request, metric or clock. The
// scheduler owns the pools and the tree over them and is their only caller.
package kvcache
