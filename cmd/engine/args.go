package main

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// hidden are the flags that nobody is shown.
var hidden = map[string]bool{"api-key": true, "admin-api-key": true, "help": true}

// shownArgs gives every flag by the name that SGLang has for it in /server_info, as it is now; null for one that is not set
// and has no default.
func shownArgs(f *pflag.FlagSet) map[string]any {
	args := map[string]any{}
	f.VisitAll(func(flag *pflag.Flag) {
		if !hidden[flag.Name] {
			args[strings.ReplaceAll(flag.Name, "-", "_")] = shown(flag.Value)
		}
	})
	return args
}

// shown gives a flag's value with its JSON type.
func shown(v pflag.Value) any {
	text := v.String()
	switch v.Type() {
	case "bool":
		return text == "true"
	case "list":
		return append([]string{}, strings.Fields(text)...)
	case "int", "int64", "uint64", "float64", "seconds":
		if _, err := strconv.ParseFloat(text, 64); err == nil {
			return json.Number(text)
		}
	case "json":
		if json.Valid([]byte(text)) {
			return json.RawMessage(text)
		}
	}
	if text == "" {
		return nil
	}
	return text
}
