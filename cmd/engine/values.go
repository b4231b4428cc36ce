package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/rank"
)

// seconds is a flag value in seconds, as a number or with a unit: 30, 0.5, 2s, 1m.
type seconds time.Duration

func (s *seconds) String() string {
	return strconv.FormatFloat(time.Duration(*s).Seconds(), 'g', -1, 64)
}

func (s *seconds) Type() string { return "seconds" }

func (s *seconds) Set(text string) error {
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		*s = seconds(d)
		return nil
	}
	number, err := strconv.ParseFloat(text, 64)
	if err != nil || !(number >= 0 && number <= 1e9) {
		return errors.New("give seconds, for example 30 or 0.5, or a duration such as 2s")
	}
	*s = seconds(number * float64(time.Second))
	return nil
}

// labelMap is a flag value that is a JSON object of strings.
type labelMap map[string]string

func (m *labelMap) String() string {
	if len(*m) == 0 {
		return ""
	}
	text, err := json.Marshal(*m)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (m *labelMap) Type() string { return "json" }

func (m *labelMap) Set(text string) error {
	var labels map[string]string
	if err := json.Unmarshal([]byte(text), &labels); err != nil {
		return fmt.Errorf(`give a JSON object of strings, for example {"cluster":"a"}: %w`, err)
	}
	if name, ok := repeatedKey(text); ok {
		return fmt.Errorf("it has the label %.100q twice: name it once", name)
	}
	*m = labels
	return nil
}

// repeatedKey finds a key that a JSON object of strings has more than once.
func repeatedKey(object string) (key string, found bool) {
	d, seen := json.NewDecoder(strings.NewReader(object)), map[string]bool{}
	for i := 0; ; i++ {
		token, err := d.Token()
		if err != nil {
			return "", false
		}
		if key, isText := token.(string); isText && i%2 == 1 { // the first one opens the object, then keys and values take turns
			if seen[key] {
				return key, true
			}
			seen[key] = true
		}
	}
}

// mode is the flag value of --disaggregation-mode.
type mode rank.Mode

func (m *mode) String() string {
	if *m == "" {
		return "null"
	}
	return string(*m)
}

func (m *mode) Type() string { return "mode" }

func (m *mode) Set(text string) error {
	switch text {
	case "null":
		*m = mode(rank.ModeUnified)
	case string(rank.ModePrefill), string(rank.ModeDecode):
		*m = mode(text)
	default:
		return errors.New("use prefill, decode or null")
	}
	return nil
}

// words is a flag value of several words, which may come as several arguments, as SGLang takes them, or as one with
// spaces or commas between them; see joinLists.
type words struct {
	set func(words []string) error
	now []string
}

func (w *words) String() string { return strings.Join(w.now, " ") }

func (w *words) Type() string { return "list" }

func (w *words) Set(text string) error {
	var all []string
	for part := range strings.SplitSeq(text, ",") {
		words := strings.Fields(part)
		if len(words) == 0 {
			return fmt.Errorf("%.100q has an empty word: leave out the flag, or the comma without a word at its side", text)
		}
		all = append(all, words...)
	}
	w.now = all
	return w.set(all)
}

// bounds is a list of numbers.
func bounds(to *[]float64) *words {
	return &words{set: func(words []string) error {
		list := make([]float64, len(words))
		for i, word := range words {
			value, err := strconv.ParseFloat(word, 64)
			if err != nil {
				return fmt.Errorf("%.100q is not a number: give bounds in seconds, for example 0.1 0.5 1", word)
			}
			list[i] = value
		}
		*to = list
		return nil
	}}
}

// rule is a list of bounds, or how to make one.
func rule(to *[]float64) *words {
	return &words{set: func(words []string) error {
		list, err := metrics.ParseBucketRule(words)
		*to = list
		return err
	}}
}

// list is a list of names.
func list(to *[]string) *words {
	return &words{set: func(words []string) error {
		*to = words
		return nil
	}}
}

// joinLists joins the arguments that belong to a flag of several words into one: --flag a b --next becomes
// --flag "a b" --next. isList says which flags take several.
func joinLists(args []string, isList func(name string) bool) []string {
	var joined []string
	for i := 0; i < len(args); i++ {
		joined = append(joined, args[i])
		name, isLong := strings.CutPrefix(args[i], "--")
		if !isLong || !isList(name) {
			continue
		}
		var values []string
		for i+1 < len(args) && !strings.HasPrefix(args[i+1], "--") {
			i++
			values = append(values, args[i])
		}
		if len(values) > 0 {
			joined = append(joined, strings.Join(values, " "))
		}
	}
	return joined
}
