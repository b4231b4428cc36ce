package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

type entry struct {
	Mode int64
	UID  int
	Kind byte
	Data string
	Link string
}

func TestLayer(t *testing.T) {
	data, err := layerTar("program", "/bin/program", []byte("code"))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]entry{}
	reader := tar.NewReader(bytes.NewReader(data))
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if !header.ModTime.Equal(epoch) {
			t.Errorf("%s has time %s, so the image would differ from build to build", header.Name, header.ModTime)
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		got[header.Name] = entry{header.Mode, header.Uid, header.Typeflag, string(content), header.Linkname}
	}
	want := map[string]entry{
		"bin/program":           {0o777, 0, tar.TypeSymlink, "", "/usr/local/bin/program"},
		"etc/":                  {0o755, 0, tar.TypeDir, "", ""},
		"etc/group":             {0o644, 0, tar.TypeReg, "root:x:0:\nnonroot:x:65532:\n", ""},
		"etc/passwd":            {0o644, 0, tar.TypeReg, "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n", ""},
		"home/":                 {0o755, 0, tar.TypeDir, "", ""},
		"home/nonroot/":         {0o750, 65532, tar.TypeDir, "", ""},
		"tmp/":                  {0o1777, 0, tar.TypeDir, "", ""},
		"usr/":                  {0o755, 0, tar.TypeDir, "", ""},
		"usr/local/":            {0o755, 0, tar.TypeDir, "", ""},
		"usr/local/bin/":        {0o755, 0, tar.TypeDir, "", ""},
		"usr/local/bin/program": {0o755, 0, tar.TypeReg, "code", ""},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("layer (-want +got):\n%s", diff)
	}
}

func TestAssemble(t *testing.T) {
	first, second := digest(t, "code"), digest(t, "code")
	if first != second {
		t.Errorf("the same program gives %s and %s", first, second)
	}
	if other := digest(t, "other"); other == first {
		t.Errorf("two programs give the same image %s", first)
	}
	image, err := assemble(Spec{Name: "program"}, "amd64", []byte("code"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	want := v1.Config{
		User:       "65532:65532",
		Entrypoint: []string{"/usr/local/bin/program"},
		Env:        []string{"PATH=/usr/local/bin", "HOME=/home/nonroot"},
		WorkingDir: "/home/nonroot",
		Labels:     map[string]string{"org.opencontainers.image.title": "program"},
	}
	if diff := cmp.Diff(want, file.Config); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	if file.OS != "linux" || file.Architecture != "amd64" {
		t.Errorf("platform is %s/%s, want linux/amd64", file.OS, file.Architecture)
	}
}

func digest(t *testing.T, program string) string {
	t.Helper()
	image, err := assemble(Spec{Name: "program"}, "amd64", []byte(program))
	if err != nil {
		t.Fatal(err)
	}
	hash, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return hash.String()
}
