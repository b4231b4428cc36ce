// Package model is a language model: its configuration, its weights and its forward pass on a device. It owns the
// Hugging Face layout of a model folder, reading it and writing a small seeded one. It knows no request, no page owner
// and no sampling; it only ever sees tokens, positions and page tables.
//
// engine/runner calls Load and Forward; init-model calls WriteSeeded.
package model
