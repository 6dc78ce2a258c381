package limits

import (
	"math/rand/v2"
	"testing"
)

func TestNestingOfProtobuf(t *testing.T) {
	inner := []byte{0x0a, 0x02, 0x08, 0x01} // a message in a message that holds a number
	for name, c := range map[string]struct {
		data []byte
		want int
	}{
		"nothing":               {nil, 0},
		"a number":              {[]byte{0x08, 0x01}, 0},
		"two levels":            {inner, 1},
		"the envelope's prefix": {append([]byte("k8s\x00"), inner...), 1},
		"text":                  {append([]byte{0x0a, 0x05}, "\xff\xff\xff\xff\xff"...), 1},
		"behind text":           {append([]byte{0x0a, 0x02, 0xff, 0xff}, 0x12, 0x04, 0x0a, 0x02, 0x08, 0x01), 2},
		"behind a group":        {[]byte{0x0a, 0x06, 0x13, 0x14, 0x0a, 0x02, 0x08, 0x01}, 2},
		"cut off":               {[]byte{0x0a, 0x7f, 0x01}, 0},
	} {
		if got := nesting(c.data); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	for json, want := range map[string]int{`{"a":[{}]}`: 3, `{"a":"[[[{\"["}`: 1, ``: 0, `]]]`: 0} {
		if got := brackets([]byte(json)); got != want {
			t.Errorf("%s: %d, want %d", json, got, want)
		}
	}
}

// What is no protobuf must neither panic nor take long.
func FuzzNesting(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		b := make([]byte, r.IntN(2000))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if n := nesting(data); n < 0 || n > len(data) {
			t.Error(n)
		}
		brackets(data)
	})
}
