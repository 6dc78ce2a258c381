package archive

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

var header = Header{ClusterID: strings.Repeat("c", 32), Generation: 1, Created: time.Unix(1e9, 0).UTC(), Version: "v0.1.0"}

func make1(t testing.TB, body []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	err := Write(&out, header, []byte("sealed"), func(w io.Writer) (Trailer, error) {
		_, err := io.Copy(struct{ io.Writer }{w}, iotest.HalfReader(bytes.NewReader(body)))
		return Trailer{Revision: 7, Keys: 3}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestAnArchiveGivesBackWhatWentIn(t *testing.T) {
	for _, size := range []int{0, 1, maxFrame - 1, maxFrame, maxFrame + 1, 3*maxFrame + 17} {
		body := bytes.Repeat([]byte("0123456789"), size/10+1)[:size]
		file := make1(t, body)
		a, err := NewReader(iotest.OneByteReader(bytes.NewReader(file)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(a)
		if err != nil || !bytes.Equal(got, body) {
			t.Fatalf("%d bytes: got %d, %v", size, len(got), err)
		}
		want := Trailer{Revision: 7, Keys: 3, Bytes: int64(size)}
		if a.Header().ClusterID != header.ClusterID || a.Trailer() != want || string(a.Sealed()) != "sealed" {
			t.Fatalf("%+v %+v", a.Header(), a.Trailer())
		}
		if h, tr, err := Peek(bytes.NewReader(file)); err != nil || tr != want || !h.Created.Equal(header.Created) {
			t.Fatalf("%+v %+v %v", h, tr, err)
		}
	}
}

func TestEveryFlippedOrMissingByteIsNoticed(t *testing.T) {
	file := make1(t, []byte("the state of the cluster"))
	for i := range file {
		bad := bytes.Clone(file)
		bad[i] ^= 0x10
		if _, _, err := Verify(bytes.NewReader(bad), nil); !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewer) {
			t.Fatalf("byte %d flipped: %v", i, err)
		}
		if _, _, err := Verify(bytes.NewReader(file[:i]), nil); !errors.Is(err, ErrDamaged) {
			t.Fatalf("cut after %d: %v", i, err)
		}
	}
	if _, _, err := Verify(bytes.NewReader(append(bytes.Clone(file), 0)), nil); !errors.Is(err, ErrDamaged) {
		t.Fatalf("a byte too many: %v", err)
	}
}

func TestAFailureOfTheBodyIsTheWritersFailure(t *testing.T) {
	boom := errors.New("boom")
	if err := Write(io.Discard, header, nil, func(io.Writer) (Trailer, error) { return Trailer{}, boom }); !errors.Is(err, boom) {
		t.Fatal(err)
	}
}

func TestTheRecoveryKeyOpensItsClusterAlone(t *testing.T) {
	k := NewKey()
	again, err := ParseKey(" " + k.Text() + "\n")
	if err != nil || again != k {
		t.Fatal(err)
	}
	slip := []byte(k.Text())
	slip[30] ^= 1
	for _, text := range []string{"", "balsa-recovery-1-", k.Text()[:40], string(slip), strings.ToUpper(k.Text())} {
		if _, err := ParseKey(text); !errors.Is(err, ErrKeyForm) || strings.Contains(err.Error(), k.Text()[20:40]) {
			t.Errorf("%v", err)
		}
	}
	if s := fmt.Sprintf("%v %+v %#v %s", k, k, k, k); strings.Contains(s, k.Text()[20:40]) {
		t.Error(s)
	}
	sealed, err := k.Seal("c1", []byte("keys"))
	if err != nil {
		t.Fatal(err)
	}
	if keys, err := k.Open("c1", sealed); err != nil || string(keys) != "keys" {
		t.Fatalf("%q, %v", keys, err)
	}
	for _, try := range []func() ([]byte, error){
		func() ([]byte, error) { return NewKey().Open("c1", sealed) },
		func() ([]byte, error) { return k.Open("c2", sealed) },
		func() ([]byte, error) { return k.Open("c1", sealed[:10]) },
	} {
		if _, err := try(); !errors.Is(err, ErrWrongKey) {
			t.Error(err)
		}
	}
	path := filepath.Join(t.TempDir(), "recovery.key")
	if _, err := OpenKeyFile(path, false); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	made, err := OpenKeyFile(path, true)
	if err != nil {
		t.Fatal(err)
	}
	read, err := OpenKeyFile(path, true)
	if st, _ := os.Stat(path); err != nil || read != made || st.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", err, st.Mode())
	}
}

func FuzzReader(f *testing.F) {
	f.Add(make1(f, []byte("body")))
	f.Add(make1(f, nil))
	f.Add([]byte(magic + "\x00\x01\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _, err := Verify(bytes.NewReader(data), nil)
		if err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewer) {
			t.Fatal(err)
		}
		_, _, _ = Peek(bytes.NewReader(data))
	})
}

func FuzzKey(f *testing.F) {
	f.Add(NewKey().Text())
	f.Fuzz(func(t *testing.T, text string) {
		if k, err := ParseKey(text); err == nil && k.Text() != strings.TrimSpace(text) {
			t.Fatal("another key")
		}
	})
}
