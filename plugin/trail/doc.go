// Package trail puts the records of one request side by side: the router's, and those of the engines that it went to, as a
// waterfall on one scale. It owns the form of /debug/requests as the plugin reads it. Everything in it is a pure function. It
// must not know how records are found. The command `trace` of package plugin calls it.
package trail
