package fastread

import (
	"bytes"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func message1(t testing.TB, o *corev1.ConfigMap) []byte {
	t.Helper()
	b, err := o.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAResourceVersionIsPutWhereItBelongs(t *testing.T) {
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "n", Namespace: "s", UID: "u", Generation: 7,
		Labels: map[string]string{"a": "b", "c": ""}}, Data: map[string]string{"k": "v"}}
	bare := message1(t, o)
	for _, revision := range []int64{1, 127, 128, 1 << 60} {
		seen := map[string]string{}
		it, err := parse(bare, revision, func(k, v []byte) { seen[string(k)] = string(v) })
		if err != nil {
			t.Fatal(err)
		}
		o.ResourceVersion = strconv.FormatInt(revision, 10)
		want := message1(t, o)
		if got := it.append(nil); !bytes.Equal(got, want) || it.size() != len(want) {
			t.Fatalf("%q, want %q", got, want)
		}
		if len(seen) != 2 || seen["a"] != "b" {
			t.Fatal(seen)
		}
		// An existing resourceVersion is replaced.
		again, err := parse(want, 5, nil)
		if err != nil {
			t.Fatal(err)
		}
		o.ResourceVersion = "5"
		if got := again.append(nil); !bytes.Equal(got, message1(t, o)) {
			t.Fatalf("%q", got)
		}
		o.ResourceVersion = ""
	}
}

func FuzzStoredBytes(f *testing.F) {
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "b"}}}
	whole := openEnvelope(nil, []byte("t"), o.Size())
	whole = closeEnvelope(append(whole, message1(f, o)...))
	f.Add(whole)
	f.Add([]byte("k8s\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, object, err := envelope(b)
		if err != nil {
			object = b
		}
		for _, labels := range []func(k, v []byte){nil, func(k, v []byte) {}} {
			it, err := parse(object, 42, labels)
			if err != nil {
				continue
			}
			got := it.append(nil)
			if len(got) != it.size() {
				t.Fatalf("%d bytes, announced %d", len(got), it.size())
			}
			// The output can be parsed again.
			if _, err := parse(got, 43, nil); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestRenderingsAreBounded(t *testing.T) {
	r := newRenderings(1000)
	defer r.close()
	text := bytes.Repeat([]byte("x"), 90)
	get := func(key string, revision int64) []byte {
		into := make([][]byte, 1)
		r.lookup([]rendering{{key: key, revision: revision}}, into)
		return into[0]
	}
	for i := range 100 {
		r.add(string(rune('a'+i)), 1, text)
		get("a", 1) // is in use
	}
	if r.bytes > 1000 || get("a", 1) == nil || get("b", 1) != nil {
		t.Fatal(r.bytes, get("a", 1), get("b", 1))
	}
	r.add("a", 2, text[:10])
	r.add("a", 1, text) // a slower reader of an earlier state
	if get("a", 1) != nil || len(get("a", 2)) != 10 {
		t.Fatal("an earlier version stands for a later one")
	}
	r.add("large", 1, make([]byte, 999))
	if get("large", 1) != nil {
		t.Fatal("one object pushed out all others")
	}
	r.touch.Store(0)
	r.dropIdle()
	if r.bytes != 0 || get("a", 2) != nil {
		t.Fatal("kept although nobody asks")
	}
}
