package grammar

import (
	"errors"
	"fmt"
)

// ErrNotAllowed is in an error about a token that the grammar does not allow at this place.
var ErrNotAllowed = errors.New("the grammar does not allow it here")

// UnsupportedError means that the source uses something that has a meaning, but none that can be enforced here. The
// remedy is the client's: leave it out.
type UnsupportedError struct {
	What  string // the construct or keyword
	Where string // a JSON pointer into the schema, or the byte at which it is in the expression
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s at %s is not supported", e.What, e.Where)
}

// InvalidError means that the source is not a schema or an expression, or that nothing can satisfy it.
type InvalidError struct {
	What  string
	Where string // as in UnsupportedError
}

func (e *InvalidError) Error() string { return fmt.Sprintf("%s: %s", e.Where, e.What) }

// LimitError means that the source needs more than Config allows.
type LimitError struct {
	What  string // "nodes", …
	Limit int
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("needs more than %d %s: make it simpler", e.Limit, e.What)
}

// bailout carries an error out of the recursion of a builder; build recovers it.
type bailout struct{ err error }

func fail(err error) { panic(bailout{err}) }

func catch(err *error) {
	switch r := recover().(type) {
	case nil:
	case bailout:
		*err = r.err
	default:
		panic(r)
	}
}
