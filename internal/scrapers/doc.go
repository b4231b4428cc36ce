// Package scrapers bounds what readers of metrics cost: an exposition may have megabytes, which stay in memory until the reader
// has taken them. It knows nothing of what is exposed. The engine, the router and the operator serve /metrics behind it.
package scrapers
