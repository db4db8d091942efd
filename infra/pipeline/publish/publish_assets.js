// Publishes the file assets of every stage of a cloud assembly, as the roles that the assembly names: node publish_assets.js FOLDER
const fs = require("fs");
const path = require("path");
const { AssetManifest, AssetPublishing, DefaultAwsClient } = require("@aws-cdk/cdk-assets-lib");

async function publish(folder) {
  const names = fs.readdirSync(folder, { recursive: true });
  for (const name of names.filter((one) => /^assembly-.*\.assets\.json$/.test(one)).sort()) {
    const manifest = AssetManifest.fromPath(path.join(folder, name));
    const aws = new DefaultAwsClient();
    await new AssetPublishing(manifest, { aws, throwOnError: true, publishInParallel: true }).publish();
    console.log(`${name}: ${manifest.entries.length} published`);
  }
}

publish(process.argv[2]).catch((error) => {
  console.error(`${error}`);
  process.exit(1);
});
