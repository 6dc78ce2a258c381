package snapshot

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTheShareOfACloneIsThatOfItsOriginal(t *testing.T) {
	c, s := NewCache(), New()
	for _, name := range []string{"a", "b", "c"} {
		c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	c.Refresh(s)
	x := s.Index("", func(n *Node, emit Emit) {
		emit("zone", "z", int(n.Name()[0]))
		emit("host", n.Name(), 1)
	})
	for i, n := range s.Nodes {
		clone, want := n.Clone(), int(n.Name()[0])+1
		if clone.Slot() != i || x.Share(n) != want || x.Share(clone) != want {
			t.Errorf("node %s: slot %d of its clone, shares %d and %d, want %d and %d", n.Name(), clone.Slot(), x.Share(n), x.Share(clone), i, want)
		}
	}
}
