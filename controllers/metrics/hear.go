package metrics

import "github.com/sluice-dev/sluice/controllers/owned"

// HearOwned makes what an owned.Applier tells of into changes for count.
func HearOwned(count func(kind string, change Change)) func(string, owned.Outcome, error) {
	return func(kind string, outcome owned.Outcome, err error) {
		change := Unchanged
		switch {
		case err != nil:
			change = Failed
		case outcome == owned.Created:
			change = Created
		case outcome == owned.Updated:
			change = Updated
		case outcome == owned.Deleted:
			change = Deleted
		}
		count(kind, change)
	}
}
