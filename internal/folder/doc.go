// Package folder makes private folders for the files of a process, which the next process of its kind finds and removes when
// the owner could not: it was killed. It knows nothing of what is in them. engine/metrics keeps stores in one, the ranks of
// engine/rank meet in one.
package folder
