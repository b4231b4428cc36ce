// Package cluster reads what the API server knows of services: the objects of one service together, and errors that say in one
// line what is wrong and what to do. It owns the connection and writes only what a command asks to be written. It knows neither
// engines nor how anything is shown. The commands of package plugin call it.
package cluster
