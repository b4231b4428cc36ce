// Checkmetrics compares live expositions with the metrics that SGLang exposes.
//
//	go run ./hack/checkmetrics http://127.0.0.1:30000/metrics …
//
// The expositions of several engines are looked at together: a family is there when any of them has a sample of it. It
// prints what each group has, then every fault, and fails when anything is missing or wrong. Families on the list of
// absent ones need not be there. Run it in the root of the repository.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/engine/metrics/contract"
)

func main() {
	ok, err := check(os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "checkmetrics:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

func check(args []string, out io.Writer) (ok bool, err error) {
	flags := flag.NewFlagSet("checkmetrics", flag.ContinueOnError)
	list := flags.String("contract", "engine/metrics/testdata/contract.txt", "the `file` of the contract")
	absent := flags.String("absent", "engine/metrics/testdata/absent.txt", "the `file` of families that no engine has; empty: all must be there")
	groups := flags.String("groups", "", "`groups` that must be complete, with commas between; empty: all")
	extra := flags.String("extra", "", "`labels` of --extra-metric-labels, with commas between")
	if err := flags.Parse(args); err != nil {
		return false, err
	}
	if flags.NArg() == 0 {
		return false, errors.New("name an address or a file, for example http://127.0.0.1:30000/metrics")
	}
	c, err := read(*list, contract.Parse)
	if err != nil {
		return false, err
	}
	o := contract.Options{Groups: split(*groups), Extra: split(*extra)}
	if *absent != "" {
		if o.Absent, err = read(*absent, contract.ParseAbsent); err != nil {
			return false, err
		}
	}
	var e contract.Exposition
	for _, source := range flags.Args() {
		if _, err := read(source, func(r io.Reader) (struct{}, error) { return struct{}{}, e.Read(source, r) }); err != nil {
			return false, err
		}
	}
	report := c.Check(&e, o)
	return report.OK(), report.Write(out)
}

func split(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// read opens a file or an address and lets parse read it.
func read[T any](source string, parse func(io.Reader) (T, error)) (value T, err error) {
	body, err := open(source)
	if err != nil {
		return value, err
	}
	defer body.Close()
	if value, err = parse(body); err != nil {
		return value, fmt.Errorf("%s: %w", source, err)
	}
	return value, nil
}

func open(source string) (io.ReadCloser, error) {
	if !strings.HasPrefix(source, "http://") && !strings.HasPrefix(source, "https://") {
		return os.Open(source)
	}
	client := &http.Client{Timeout: 10 * time.Second}
	req, err := http.NewRequest(http.MethodGet, source, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4")
	answer, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		answer.Body.Close()
		return nil, fmt.Errorf("GET %s: %s", source, answer.Status)
	}
	return answer.Body, nil
}
