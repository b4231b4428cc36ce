package server

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

var temporary string

func mkdirTemp() (string, error) { return os.MkdirTemp(temporary, "tokenizer") }

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "server-test")
	if err != nil {
		panic(err)
	}
	temporary = dir
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}
