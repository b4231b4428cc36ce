package rank

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestModelID: peers that hold other weights must not exchange KV, wherever the files lie.
func TestModelID(t *testing.T) {
	files := func(change func(map[string][]byte)) map[string][]byte {
		m := map[string][]byte{
			"config.json":             []byte(`{"hidden_size": 8}`),
			"model-1.safetensors":     bytes.Repeat([]byte{1}, 10),
			"model-2.safetensors":     bytes.Repeat([]byte{2}, sampleInterval+3*sampleBytes),
			"tokenizer.json":          []byte("{}"),
			"model-2.safetensors.old": []byte("old"),
		}
		change(m)
		return m
	}
	id := func(folder string, files map[string][]byte) string {
		dir := filepath.Join(t.TempDir(), folder)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, data := range files {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		id, err := modelID(dir)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	base := id("model", files(func(map[string][]byte) {}))
	tests := []struct {
		name, reason, folder string
		change               func(map[string][]byte)
		same                 bool
	}{
		{name: "moved", reason: "the folder is no part of the model", folder: "elsewhere", change: func(map[string][]byte) {}, same: true},
		{name: "pattern", reason: "nor are its characters a pattern", folder: "m[1]*", change: func(map[string][]byte) {}, same: true},
		{name: "other files", reason: "only weights and configuration decide", folder: "model", change: func(m map[string][]byte) { m["tokenizer.json"] = []byte("[]") }, same: true},
		{name: "configuration", reason: "it decides what the weights mean", folder: "model", change: func(m map[string][]byte) { m["config.json"] = []byte(`{"hidden_size": 9}`) }},
		{name: "first byte", reason: "small files count whole", folder: "m[1]*", change: func(m map[string][]byte) { m["model-1.safetensors"][0] = 9 }},
		{name: "last byte", reason: "the end of a large file is sampled", folder: "model", change: func(m map[string][]byte) { m["model-2.safetensors"][sampleInterval+3*sampleBytes-1] = 9 }},
		{name: "middle", reason: "so is a piece in every interval", folder: "model", change: func(m map[string][]byte) { m["model-2.safetensors"][sampleInterval] = 9 }},
		{name: "size", reason: "a longer file is another", folder: "model", change: func(m map[string][]byte) { m["model-1.safetensors"] = bytes.Repeat([]byte{1}, 11) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := id(tt.folder, files(tt.change)); (got == base) != tt.same {
				t.Errorf("%s: the id is the same: %t, want %t", tt.reason, got == base, tt.same)
			}
		})
	}
	if _, err := modelID(t.TempDir()); err == nil || !strings.Contains(err.Error(), "config.json") {
		t.Errorf("a folder without a model: error is %v", err)
	}
}
