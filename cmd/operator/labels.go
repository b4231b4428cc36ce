package main

import (
	"encoding/csv"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// once is a flag of labels, key=value with commas between, that refuses a key which comes twice: the later one would win, and
// nobody would know.
type once struct{ pflag.Value }

// refuseRepeated makes flags of labels refuse repeated keys.
func refuseRepeated(flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Value.Type() == "stringToString" {
			f.Value = once{f.Value}
		}
	})
}

// Set reads the labels of one argument.
func (o once) Set(text string) error {
	parts, err := csv.NewReader(strings.NewReader(text)).Read()
	if err != nil { // also of nothing
		return o.Value.Set(text)
	}
	seen := map[string]bool{}
	for _, part := range parts {
		key, _, _ := strings.Cut(part, "=")
		if key = strings.TrimSpace(key); key == "" {
			return fmt.Errorf("%.100q has an empty key: give key=value with commas between", text)
		}
		if seen[key] {
			return fmt.Errorf("it has %.100q twice: name it once", key)
		}
		seen[key] = true
	}
	return o.Value.Set(text)
}
