package safetensors

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// The names that Hugging Face gives to a model's weights.
const (
	SingleName = "model.safetensors"
	IndexName  = "model.safetensors.index.json"
)

// Set is the weights of a model: one file, or several with an index. Its methods may be called from several goroutines.
type Set struct {
	files  []*File
	holder map[string]*File // by tensor name
}

// OpenDir opens dir's model.safetensors.index.json with the files that it names or, where there is no index,
// model.safetensors. The caller closes the Set.
func OpenDir(dir string) (*Set, error) {
	raw, err := os.ReadFile(filepath.Join(dir, IndexName))
	if errors.Is(err, fs.ErrNotExist) {
		f, err := Open(filepath.Join(dir, SingleName))
		if err != nil {
			return nil, err
		}
		s := &Set{files: []*File{f}, holder: map[string]*File{}}
		for _, t := range f.tensors {
			s.holder[t.Name] = f
		}
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open weights: %w", err)
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(raw, &index); err != nil {
		return nil, fmt.Errorf("open weights %s: %w", filepath.Join(dir, IndexName), err)
	}
	s, err := openShards(dir, index.WeightMap)
	if err != nil {
		return nil, fmt.Errorf("open weights %s: weight_map: %w", filepath.Join(dir, IndexName), err)
	}
	return s, nil
}

func openShards(dir string, weightMap map[string]string) (*Set, error) {
	if len(weightMap) == 0 {
		return nil, errors.New("is empty or missing: want tensor names with their files")
	}
	s := &Set{holder: map[string]*File{}}
	opened := map[string]*File{}
	for _, tensor := range slices.Sorted(maps.Keys(weightMap)) {
		name := weightMap[tensor]
		if !filepath.IsLocal(name) || filepath.Base(name) != name {
			s.Close()
			return nil, fmt.Errorf("tensor %q is in %q: want a file name in the same folder", tensor, name)
		}
		f := opened[name]
		if f == nil {
			var err error
			if f, err = Open(filepath.Join(dir, name)); err != nil {
				s.Close()
				return nil, err
			}
			opened[name], s.files = f, append(s.files, f)
		}
		if _, ok := f.Tensor(tensor); !ok {
			s.Close()
			return nil, fmt.Errorf("tensor %q is not in %s, where the index puts it", tensor, name)
		}
		s.holder[tensor] = f
	}
	return s, nil
}

// Tensor finds an entry by name.
func (s *Set) Tensor(name string) (t Tensor, ok bool) {
	f, ok := s.holder[name]
	if !ok {
		return Tensor{}, false
	}
	return f.Tensor(name)
}

// ReadFloat32 converts the tensor into dst, which must have exactly its number of elements.
func (s *Set) ReadFloat32(dst []float32, name string) error {
	f, ok := s.holder[name]
	if !ok {
		return fmt.Errorf("read tensor %q: the weights don't hold it", name)
	}
	return f.ReadFloat32(dst, name)
}

// ReadBlock is File.ReadBlock of the file that holds the tensor.
func (s *Set) ReadBlock(dst []float32, name string, width, fromRow, toRow, fromCol, toCol int) error {
	f, ok := s.holder[name]
	if !ok {
		return fmt.Errorf("read tensor %q: the weights don't hold it", name)
	}
	return f.ReadBlock(dst, name, width, fromRow, toRow, fromCol, toCol)
}

// Close closes all files.
func (s *Set) Close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
