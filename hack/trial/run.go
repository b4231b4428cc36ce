package trial

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// run runs a program in dir. Its output goes to log, and the end of it into the error.
func run(ctx context.Context, dir string, log io.Writer, name string, args ...string) error {
	var tail bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Stdout = log
	cmd.Stderr = io.MultiWriter(log, &tail)
	if err := cmd.Run(); err != nil {
		text := complaint(tail.Bytes())
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, text[max(0, len(text)-600):])
	}
	return nil
}

// complaint is what a failed program wrote to its standard error, without the exit status that `go run` adds.
func complaint(stderr []byte) string {
	lines := strings.Split(strings.TrimSpace(string(stderr)), "\n")
	for len(lines) > 1 && strings.HasPrefix(lines[len(lines)-1], "exit status ") {
		lines = lines[:len(lines)-1]
	}
	return strings.Join(lines, "\n")
}
