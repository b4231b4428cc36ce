package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/sluice-dev/sluice/engine/model"
	"github.com/sluice-dev/sluice/engine/tokenizer"
	"github.com/spf13/cobra"
)

// modelFiles are what init-model writes.
var modelFiles = []string{"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}

func initModelCommand() *cobra.Command {
	options := model.SeededOptions{}
	var out string
	var force bool
	c := &cobra.Command{
		Use:   "init-model --out DIR",
		Short: "Write a small model with seeded random weights, for trials and tests",
		Long: `Write a small model in Hugging Face layout: config.json, model.safetensors, tokenizer.json, tokenizer_config.json.
Its weights are random but fixed by the seed: the same flags give the same files, byte for byte.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := initModel(out, options, force); err != nil {
				return err
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "wrote %s: serve it with `sluice-engine serve --model-path %s`\n", out, out)
			return err
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&out, "out", "", "directory to write to; it is created")
	f.BoolVar(&force, "force", false, "overwrite the model that is there")
	f.StringVar(&options.Arch, "arch", "llama", "architecture: llama, or ministral, every second layer of which looks at a window")
	f.Uint64Var(&options.Seed, "seed", 0, "seed of the weights and the tokenizer")
	f.IntVar(&options.VocabSize, "vocab-size", 1024, fmt.Sprintf("tokens, at least %d", tokenizer.MinSeededVocab))
	f.IntVar(&options.Hidden, "hidden-size", 128, "width of the model")
	f.IntVar(&options.Intermediate, "intermediate-size", 0, "width of the MLP (default: 11/4 of the hidden size)")
	f.IntVar(&options.Layers, "layers", 4, "number of layers")
	f.IntVar(&options.Heads, "heads", 8, "attention heads")
	f.IntVar(&options.KVHeads, "kv-heads", 0, "heads of keys and values (default: half of the heads)")
	f.IntVar(&options.HeadDim, "head-dim", 0, "width of a head (default: hidden size / heads)")
	f.IntVar(&options.SlidingWindow, "sliding-window", 0, "tokens that the windowed layers of ministral look at (default: 64)")
	f.IntVar(&options.ContextLength, "context-length", 4096, "longest sequence in tokens")
	return c
}

// initModel writes the model's files into out. What it wrote before a failure is removed, so that the next try finds
// nothing in its way.
func initModel(out string, options model.SeededOptions, force bool) (err error) {
	if out == "" {
		return errors.New("--out is missing: name the directory to write to")
	}
	if options.Arch != "llama" && options.Arch != "ministral" {
		return fmt.Errorf("--arch is %q: use llama or ministral", options.Arch)
	}
	var fresh []string // files that were not there
	for _, name := range modelFiles {
		path := filepath.Join(out, name)
		_, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			fresh = append(fresh, path)
		case errors.Is(err, syscall.ENOTDIR):
			return fmt.Errorf("--out %s is a file, or is inside one: name a directory", out)
		case err != nil:
			return fmt.Errorf("look for a model in --out: %w", err)
		case !force:
			return fmt.Errorf("%s exists: name another --out, or overwrite it with --force", path)
		}
	}
	_, missing := os.Lstat(out)
	defer func() {
		if err == nil {
			return
		}
		for _, path := range fresh {
			_ = os.Remove(path) // it may not have been written yet
		}
		if missing != nil {
			_ = os.Remove(out) // unless somebody else has put something there
		}
	}()
	if err := os.MkdirAll(out, 0o755); err != nil {
		return fmt.Errorf("create --out: %w", err)
	}
	seeded, err := tokenizer.WriteSeeded(out, options.VocabSize, options.Seed)
	if err != nil {
		return fmt.Errorf("--vocab-size %d: %w", options.VocabSize, err)
	}
	options.VocabSize, options.EOSTokenIDs, options.BOSTokenID = seeded.VocabSize, seeded.EOSTokenIDs, &seeded.BOSTokenID
	if err := model.WriteSeeded(out, options); err != nil {
		return fmt.Errorf("write the model to %s: %w", out, err)
	}
	return nil
}
