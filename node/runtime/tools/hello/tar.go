package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// tarApplet knows what `kubectl cp` asks for: `tar cf - PATH…` and
// `tar -xmf - -C DIR`.
func tarApplet(args []string) error {
	var dir string
	var paths []string
	mode := byte(0)
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-C" && i+1 < len(args):
			i++
			dir = args[i]
		case a == "-":
		case strings.HasPrefix(a, "--"):
		case mode == 0:
			for _, c := range []byte(strings.TrimPrefix(a, "-")) {
				if c == 'c' || c == 'x' || c == 't' {
					mode = c
				}
			}
		default:
			paths = append(paths, a)
		}
	}
	if dir != "" {
		if err := os.Chdir(dir); err != nil {
			return err
		}
	}
	switch mode {
	case 'c':
		return create(os.Stdout, paths)
	case 'x':
		return extract(os.Stdin)
	}
	return errors.New("usage: tar cf - PATH…, or tar xf - [-C DIR]")
}

func create(out io.Writer, paths []string) error {
	w := tar.NewWriter(out)
	for _, root := range paths {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return addFile(w, path)
		})
		if err != nil {
			return err
		}
	}
	return w.Close()
}

func addFile(w *tar.Writer, path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	link := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if link, err = os.Readlink(path); err != nil {
			return err
		}
	}
	header, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	header.Name = strings.TrimPrefix(path, "/")
	if err := w.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// extract writes below the working directory and nowhere else.
func extract(in io.Reader) error {
	root, err := os.OpenRoot(".")
	if err != nil {
		return err
	}
	defer root.Close()
	r := tar.NewReader(in)
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := extractOne(root, header, r); err != nil {
			return fmt.Errorf("%s: %w", header.Name, err)
		}
	}
}

func extractOne(root *os.Root, header *tar.Header, r io.Reader) error {
	name := strings.TrimPrefix(filepath.Clean("/"+header.Name), "/")
	if name == "" {
		return nil
	}
	if header.Typeflag == tar.TypeDir {
		return root.MkdirAll(name, 0o755)
	}
	if parent := filepath.Dir(name); parent != "." {
		if err := root.MkdirAll(parent, 0o755); err != nil {
			return err
		}
	}
	if header.Typeflag == tar.TypeSymlink {
		return root.Symlink(header.Linkname, name)
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, fs.FileMode(header.Mode&0o777))
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, r); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
