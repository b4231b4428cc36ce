// Package profile records pprof profiles of a process while it serves.
//
// It owns the files of a recording and its begin and end. It must not know what the process does, only that there are steps.
// engine/server records the API process and asks each rank to record itself; engine/rank answers.
package profile
