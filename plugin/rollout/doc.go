// Package rollout says how far the roll-out of a service is, which revisions its pools remember, and what a service is to be so
// that it is as before. Everything in it is a pure function; a revision is the generation of the service at which it was in force
// last. It must not know connections. The commands `rollout …` of package plugin call it.
package rollout
