package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/pkg/atomicfile"
)

// recordName is the file in RootDir that holds the claims of this node's pods.
const recordName = "dra_claims"

// load reads the record. One that cannot be read is an error: without it devices would stay prepared for pods that are gone.
func load(path string) (map[key]*claim, error) {
	claims := map[key]*claim{}
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return claims, nil
	}
	if err != nil {
		return nil, fmt.Errorf("claims of this node's pods: %w", err)
	}
	var list []*claim
	if err := json.Unmarshal(content, &list); err != nil {
		return nil, fmt.Errorf("claims of this node's pods: %s: %w; remove the file when no pod with claims runs here", path, err)
	}
	for _, c := range list {
		claims[c.key()] = c
	}
	return claims, nil
}

// save writes the record: whole, and on the disk before it returns. m.mu is held.
func (m *Manager) save() error {
	list := make([]*claim, 0, len(m.claims))
	for _, c := range m.claims {
		list = append(list, c)
	}
	content, err := json.Marshal(list)
	if err != nil {
		return err
	}
	f, err := atomicfile.New(filepath.Join(m.cfg.RootDir, recordName), 0o600)
	if err != nil {
		return fmt.Errorf("record of claims: %w", err)
	}
	if _, err := f.Write(content); err != nil {
		return fmt.Errorf("record of claims: %w", errors.Join(err, f.Cancel()))
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("record of claims: %w", err)
	}
	return nil
}
