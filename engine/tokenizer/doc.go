// Package tokenizer turns text into token ids and back: byte-level BPE as described by a Hugging Face tokenizer.json, and
// the chat template of tokenizer_config.json. It owns those two files' formats, the incremental decoder (Stream) and the
// training of the small seeded tokenizers that init-model writes.
//
// It knows no request, model or HTTP. Callers: the API process encodes prompts, applies chat templates and detokenizes;
// the scheduler decodes the tail of a sequence to find stop strings; init-model writes seeded files. A Tokenizer is
// immutable and safe for concurrent use; a Stream belongs to one goroutine.
package tokenizer
