// Package metamorphic asks the same prompts of engines that differ in everything that must not matter: page size, chunks,
// cache, overlap, retraction, parallelism, disaggregation. The tokens have to be the same.
package metamorphic
