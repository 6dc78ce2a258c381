package fault

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAPanicBecomesAnErrorThatIsCounted(t *testing.T) {
	before := Counts()["test/contain"]
	err := Contain("test/contain", func() error { panic("an object nobody expected") })
	var p *Panic
	if !errors.Is(err, ErrPanic) || !errors.As(err, &p) || p.Unit != "test/contain" || len(p.Stack) == 0 {
		t.Fatalf("%#v", err)
	}
	if !strings.Contains(err.Error(), "an object nobody expected") || strings.Contains(err.Error(), "\n") {
		t.Fatalf("the text is %q", err)
	}
	if n := Counts()["test/contain"] - before; n != 1 {
		t.Fatalf("counted %d times", n)
	}
	plain := errors.New("plain")
	if err := Contain("test/contain", func() error { return plain }); err != plain {
		t.Fatal(err)
	}
}

func TestKeptWorkBeginsAnewLaterAndLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var began []time.Time
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_ = Keep(ctx, "test/keep", func(context.Context) error {
			began = append(began, time.Now())
			panic("again")
		})
		if len(began) < 60 || len(began) > 75 {
			t.Fatalf("%d attempts in an hour, want about one a minute at last", len(began))
		}
		if first, second := began[1].Sub(began[0]), began[2].Sub(began[1]); first != firstPause || second != 2*firstPause {
			t.Fatalf("pauses %v and %v", first, second)
		}
		if err := Keep(ctx, "test/keep", func(context.Context) error { return nil }); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAnEventIsHandedOverAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		if err := Retry("test/retry", func() {
			if calls++; calls < 3 {
				panic("not yet")
			}
		}); err != nil || calls != 3 {
			t.Fatalf("%d calls: %v", calls, err)
		}
		calls = 0
		if err := Retry("test/retry", func() { calls++; panic("never") }); !errors.Is(err, ErrPanic) || calls != 4 {
			t.Fatalf("%d calls: %v", calls, err)
		}
	})
}

func TestARequestWhoseHandlerPanicsIsAbortedAndTheNextServed(t *testing.T) {
	calls := 0
	server := httptest.NewServer(Handler("test/http", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls++; calls == 1 {
			_, _ = w.Write([]byte("half"))
			panic("the other half")
		}
	})))
	defer server.Close()
	if resp, err := http.Post(server.URL, "text/plain", nil); err == nil {
		resp.Body.Close()
		t.Fatal("half an answer was taken for a whole one")
	}
	resp, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if Counts()["test/http"] == 0 {
		t.Fatal("not counted")
	}
}

// TestFatalEndsTheProcess runs itself as a child process that would recover the panic.
func TestFatalEndsTheProcess(t *testing.T) {
	if os.Getenv("FAULT_TEST_FATAL") != "" {
		defer func() { _ = recover() }()
		func() {
			defer Fatal("test/fatal")
			panic("half a batch")
		}()
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^TestFatalEndsTheProcess$")
	cmd.Env = append(os.Environ(), "FAULT_TEST_FATAL=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "test/fatal must not go on after a panic: half a batch") {
		t.Fatalf("%v\n%s", err, out)
	}
}
