package localcsi

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestADirectoryThatIsSwappedWhileItIsMounted: a program exchanges a volume's directory for links all the time, to a
// directory of the host and to another volume. Nothing but the volume is ever mounted.
func TestADirectoryThatIsSwappedWhileItIsMounted(t *testing.T) {
	d := newDriver(t)
	id, other := d.mustCreate(t, "v"), d.mustCreate(t, "other")
	place := filepath.Join(d.cfg.Dir, id, dataName)
	var want unix.Stat_t
	if err := unix.Stat(place, &want); err != nil {
		t.Fatal(err)
	}
	for name, leads := range map[string]string{"the host": t.TempDir(), "another volume": filepath.Join("../", other, dataName)} {
		link := filepath.Join(d.cfg.Dir, id, "link")
		if err := os.Symlink(leads, link); err != nil {
			t.Fatal(err)
		}
		stop, stopped := make(chan struct{}), make(chan error)
		go func() {
			var err error
			for err == nil {
				// Twice: the directory is in its place again when the loop ends.
				err = errors.Join(unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, place, unix.RENAME_EXCHANGE),
					unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, place, unix.RENAME_EXCHANGE))
				select {
				case <-stop:
					stopped <- err
					return
				default:
				}
			}
			<-stop
			stopped <- err
		}()
		mounted, refused := 0, 0
		for tries := 0; tries < 20000 && (mounted < 20 || refused < 20); tries++ {
			target := filepath.Join(t.TempDir(), "mount")
			if publish(t, d, id, target) != nil {
				refused++
				continue
			}
			mounted++
			var got unix.Stat_t
			if err := unix.Stat(target, &got); err != nil || got.Ino != want.Ino || got.Dev != want.Dev {
				t.Errorf("%s was mounted: %v", name, err)
			}
			unpublish(t, d, id, target)
		}
		close(stop)
		if err := <-stopped; err != nil {
			t.Fatal(err)
		}
		if mounted == 0 || refused == 0 {
			t.Errorf("%s: mounted %d times and refused %d times; the race was not run", name, mounted, refused)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
}

func TestALinkToAnotherVolumeIsNotMounted(t *testing.T) {
	d := newDriver(t)
	id, other := d.mustCreate(t, "v"), d.mustCreate(t, "other")
	place := filepath.Join(d.cfg.Dir, id, dataName)
	if err := errors.Join(os.Remove(place), os.Symlink("../"+other+"/"+dataName, place)); err != nil {
		t.Fatal(err)
	}
	if err := publish(t, d, id, filepath.Join(t.TempDir(), "mount")); err == nil {
		t.Error("the other volume's files were mounted")
	}
}
