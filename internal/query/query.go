// Package query reads the queries of URLs as a whole: net/http leaves out what it can't read, and handlers what they don't know,
// and whoever wrote it believes that it counted. It knows no parameter. The debug, control, load and metrics endpoints of
// engine/server and router/proxy call it.
package query

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// Param is a parameter that a route knows.
type Param struct {
	Name string
	Many bool // it may come several times
}

// Single gives parameters that come at most once.
func Single(names ...string) []Param {
	list := make([]Param, len(names))
	for i, name := range names {
		list[i].Name = name
	}
	return list
}

// Parse gives the parameters of a raw query. An error names the first one that can't be read, that is not known, or that comes
// more often than it may, and the remedy.
func Parse(raw string, known []Param) (url.Values, error) {
	values, err := read(raw)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		i := slices.IndexFunc(known, func(p Param) bool { return p.Name == name })
		switch {
		case i < 0 && len(known) == 0:
			return nil, fmt.Errorf("%q is not known: there are no parameters here", clip(name))
		case i < 0:
			return nil, fmt.Errorf("%q is not known: the parameters are %s", clip(name), names(known))
		case !known[i].Many && len(values[name]) > 1:
			return nil, fmt.Errorf("%q comes %d times: give it once", name, len(values[name]))
		}
	}
	return values, nil
}

func names(list []Param) string {
	all := make([]string, len(list))
	for i, p := range list {
		all[i] = p.Name
	}
	return strings.Join(all, ", ")
}

// read gives the parameters of a raw query, or an error that names the first one that can't be read and the remedy.
func read(raw string) (url.Values, error) {
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
