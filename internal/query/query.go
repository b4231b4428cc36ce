// Package query reads the queries of URLs as a whole: net/http leaves out what it can't read, and whoever wrote it believes
// that it counted. It knows no parameter. The debug, control and load endpoints of engine/server and router/proxy call it.
package query

import (
	"fmt"
	"net/url"
	"strings"
)

// Parse gives the parameters of a raw query, or an error that names the first one that can't be read and the remedy.
func Parse(raw string) (url.Values, error) {
	values, err := url.ParseQuery(raw)
	if err == nil {
		return values, nil
	}
	for part := range strings.SplitSeq(raw, "&") {
		if strings.Contains(part, ";") {
			return nil, fmt.Errorf("%q has a semicolon: part parameters with &, and write a semicolon in a value as %%3B", clip(part))
		}
		name, value, _ := strings.Cut(part, "=")
		for _, text := range []string{name, value} {
			if _, err := url.QueryUnescape(text); err != nil {
				return nil, fmt.Errorf("%q can't be read: %w; write a percent sign as %%25", clip(part), err)
			}
		}
	}
	return nil, fmt.Errorf("%q can't be read: %w", clip(raw), err) // too many parameters
}

// clip shortens what a client sent for an error message.
func clip(text string) string {
	const most = 200
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
