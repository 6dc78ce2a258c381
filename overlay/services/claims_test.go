package services

import "testing"

// What a restart finds in the kernel must not be made there a second time.
func TestWhatIsKeptDoesNotCome(t *testing.T) {
	c := newCounts(make(Counted[string]), 2)
	c.startRecording()
	c.keepIdle("found")
	if got := c.takeChanges(); len(got) != 0 {
		t.Errorf("taken after it was found: %v", got)
	}
	c.add("found")
	c.drop("found")
	if got := c.takeChanges(); len(got) != 0 {
		t.Errorf("taken after it was wanted for a while: %v", got)
	}
	c.add("new")
	if got := c.takeChanges(); len(got) != 1 || !got["new"] {
		t.Errorf("taken after something new: %v", got)
	}
}
