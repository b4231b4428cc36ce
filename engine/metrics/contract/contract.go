package contract

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Family is one row of the contract.
type Family struct {
	Name  string // as exposed; counters hold their _total
	Type  string // counter, gauge, histogram or summary
	Role  string // who exports it: scheduler, front, http, radix, …
	Group string
	Merge string // sum, mostrecent, livesum, or all: one series for each process

	// Labels are on every sample.
	Labels []string
	// May are the labels that a sample has under some configurations.
	May []string
	// Extra and Custom allow the labels that an operator adds, and those that clients may fill.
	Extra, Custom bool
	// Buckets are the bounds of a histogram without +Inf; nil when they depend on the configuration.
	Buckets []float64
	// Bounds are those of a gauge with the labels gt and le, without +Inf.
	Bounds []float64
}

// Contract is the list. It does not change once it was read.
type Contract struct {
	families []Family
	byName   map[string]int
}

// Parse reads the list: a family a line, its name and then fields of the form key=value. Empty lines and lines that begin
// with # say nothing.
func Parse(r io.Reader) (*Contract, error) {
	c := &Contract{byName: map[string]int{}}
	scanner := bufio.NewScanner(r)
	for number := 1; scanner.Scan(); number++ {
		line := strings.TrimSpace(scanner.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		f, err := parseFamily(strings.Fields(line))
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if _, twice := c.byName[f.Name]; twice {
			return nil, fmt.Errorf("line %d: %s is there twice", number, f.Name)
		}
		c.byName[f.Name] = len(c.families)
		c.families = append(c.families, f)
	}
	return c, scanner.Err()
}

func parseFamily(fields []string) (Family, error) {
	f := Family{Name: fields[0]}
	for _, field := range fields[1:] {
		key, value, ok := strings.Cut(field, "=")
		if !ok {
			return Family{}, fmt.Errorf("%s: %q has no value: write key=value", f.Name, field)
		}
		var err error
		switch key {
		case "type":
			f.Type = value
		case "role":
			f.Role = value
		case "group":
			f.Group = value
		case "merge":
			f.Merge = value
		case "labels":
			f.Labels = strings.Split(value, ",")
		case "may":
			f.May = strings.Split(value, ",")
			f.Extra, f.Custom = slices.Contains(f.May, "+extra"), slices.Contains(f.May, "+custom")
			f.May = slices.DeleteFunc(f.May, func(l string) bool { return l[:min(1, len(l))] == "+" })
		case "buckets":
			f.Buckets, err = parseFloats(value)
		case "bounds":
			f.Bounds, err = parseFloats(value)
		default:
			err = fmt.Errorf("field %q is not known: write type, role, group, merge, labels, may, buckets or bounds", key)
		}
		if err != nil {
			return Family{}, fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	if !slices.Contains([]string{"counter", "gauge", "histogram", "summary"}, f.Type) {
		return Family{}, fmt.Errorf("%s: type is %q: write counter, gauge, histogram or summary", f.Name, f.Type)
	}
	if f.Group == "" {
		return Family{}, fmt.Errorf("%s: group is missing", f.Name)
	}
	return f, nil
}

func parseFloats(list string) ([]float64, error) {
	var out []float64
	for text := range strings.SplitSeq(list, ",") {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is not a number", text)
		}
		out = append(out, v)
	}
	return out, nil
}

// Families gives the rows in their order.
func (c *Contract) Families() []Family { return slices.Clone(c.families) }

// Lookup finds a row by name.
func (c *Contract) Lookup(name string) (f Family, ok bool) {
	i, ok := c.byName[name]
	if !ok {
		return Family{}, false
	}
	return c.families[i], true
}

// Groups gives the names of the groups in their order.
func (c *Contract) Groups() []string {
	var groups []string
	for _, f := range c.families {
		if !slices.Contains(groups, f.Group) {
			groups = append(groups, f.Group)
		}
	}
	return groups
}

// ParseAbsent reads the list of families that the engine does not have: a name a line, and why.
func ParseAbsent(r io.Reader) (reasons map[string]string, err error) {
	reasons = map[string]string{}
	scanner := bufio.NewScanner(r)
	for number := 1; scanner.Scan(); number++ {
		line := strings.TrimSpace(scanner.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, reason, ok := strings.Cut(line, " ")
		if _, twice := reasons[name]; !ok || twice {
			return nil, fmt.Errorf("line %d: write each family once, with the reason behind its name", number)
		}
		reasons[name] = strings.TrimSpace(reason)
	}
	return reasons, scanner.Err()
}
