package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/plugin/cluster"
	"github.com/sluice-dev/sluice/plugin/reach"
	"github.com/sluice-dev/sluice/plugin/view"
)

// Output is the form of an answer.
type Output string

const (
	// Text is for people.
	Text Output = ""
	// Wide is Text with more columns.
	Wide Output = "wide"
	// JSON is the document of the command.
	JSON Output = "json"
)

// Outputs are the values of -o.
func Outputs() []Output { return []Output{JSON, Wide} }

// ParseOutput reads the value of -o.
func ParseOutput(text string) (Output, error) {
	if o := Output(text); o == Text || slices.Contains(Outputs(), o) {
		return o, nil
	}
	return Text, fmt.Errorf("-o %s: give json or wide, or leave it out", text)
}

// Plugin runs commands on one cluster.
type Plugin struct {
	Cluster *cluster.Cluster
	Pods    *reach.Pods
	// AllNamespaces widens status and top.
	AllNamespaces bool
	Output        Output
	Out, Err      io.Writer
	// Screen: Out is a terminal, on which a table may be drawn over the one before.
	Screen bool
	Now    func() time.Time
	// After gives a channel that is ready after a time.
	After func(time.Duration) <-chan time.Time
}

// ErrUsage says that a command was given what it does not take.
var ErrUsage = errors.New("wrong usage")

// write gives a document as JSON, or its text.
func (p *Plugin) write(document any, text func(wide bool) string) error {
	var err error
	if p.Output == JSON {
		var body []byte
		if body, err = json.MarshalIndent(document, "", "  "); err == nil {
			_, err = p.Out.Write(append(body, '\n'))
		}
	} else {
		_, err = io.WriteString(p.Out, text(p.Output == Wide))
	}
	if err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// writeJSONLine gives a document on one line, for answers without an end.
func (p *Plugin) writeJSONLine(document any) error {
	body, err := json.Marshal(document)
	if err == nil {
		_, err = p.Out.Write(append(body, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// warn tells of what the answer lacks, beside it.
func (p *Plugin) warn(text string) {
	_, _ = fmt.Fprintln(p.Err, "kubectl-sluice: "+view.Plain(strings.Join(strings.Fields(text), " ")))
}

func (p *Plugin) time() string { return p.Now().UTC().Format(time.RFC3339) }
