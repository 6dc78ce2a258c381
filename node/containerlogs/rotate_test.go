package containerlogs

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestLogIsRotatedAndCompressed(t *testing.T) {
	log := t.TempDir() + "/0.log"
	synctest.Test(t, func(t *testing.T) { // a rotated file is named after the second
		for range 7 {
			if err := os.WriteFile(log, []byte("line\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := Rotate(log, 5, func() error { return nil }); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
	})
	files, err := rotatedFiles(log)
	if err != nil || len(files) != 4 {
		t.Errorf("%d rotated files, want 4 beside the live one: %v %v", len(files), files, err)
	}
	for i, f := range files {
		if strings.HasSuffix(f, ".gz") == (i == len(files)-1) {
			t.Errorf("only the newest stays as it is: %v", files)
		}
	}
}
