package rank

import (
	"fmt"

	"github.com/sluice-dev/sluice/internal/folder"
)

const meetingPrefix = "sluice-world-"

// newMeeting makes the private folder in which the ranks of a node meet. It is removed once they have met or never will.
func newMeeting() (*folder.Folder, error) {
	f, err := folder.Make("", meetingPrefix)
	if err != nil {
		return nil, fmt.Errorf("make a folder where they meet: %w", err)
	}
	return f, nil
}

// RemoveLeftOver removes the folders that API processes left in the temporary directory when they were killed while their
// ranks met.
func RemoveLeftOver() { folder.Sweep("", meetingPrefix, nil) }
