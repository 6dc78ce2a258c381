package servers

import (
	"errors"
	"strings"
	"testing"
)

func TestAnEmptyListOfServersIsSaidSo(t *testing.T) {
	s, err := New(Config{Node: "node-1"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.DialContext(t.Context(), "tcp", "")
	if !errors.Is(err, ErrNoServer) || !strings.HasSuffix(err.Error(), "the list of servers is empty") || strings.Contains(err.Error(), "%!") {
		t.Error(err)
	}
}
