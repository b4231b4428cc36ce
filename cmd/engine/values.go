package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/engine/rank"
)

// seconds is a flag value in seconds, as a number or with a unit: 30, 0.5, 2s, 1m.
type seconds time.Duration

func (s *seconds) String() string {
	return strconv.FormatFloat(time.Duration(*s).Seconds(), 'g', -1, 64)
}

func (s *seconds) Type() string { return "seconds" }

func (s *seconds) Set(text string) error {
	if d, err := time.ParseDuration(text); err == nil {
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
	decoder := json.NewDecoder(strings.NewReader(text))
	if err := decoder.Decode((*map[string]string)(m)); err != nil {
		return fmt.Errorf(`give a JSON object of strings, for example {"cluster":"a"}: %w`, err)
	}
	return nil
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
