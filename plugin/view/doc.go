// Package view says how things are shown: documents with a stable JSON schema, built from objects and answers of engines, and
// their form as text. Everything in it is a pure function. It must not know connections, terminals or flags. The commands of
// package plugin call it. docs/kubectl-sluice.md describes every field; a test compares.
package view
