// Package kvcache accounts for KV memory: which pages are free, used or reserved. It is host data, page numbers alone; it
// knows no tensor, request, metric or clock. The scheduler owns a Pool and is its only caller.
package kvcache
